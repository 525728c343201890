"""Which worker a request goes to: what it will cost, the policies that choose, the breakers that leave workers out."""

"""A small model beside the big one, which proposes what the big one may say next."""

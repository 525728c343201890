"""Who proposes what to whom in which pass: the only place that knows drafts, requests and passes."""

"""Commands that answer a question about a model: will it fit, what is lost, where, and why."""

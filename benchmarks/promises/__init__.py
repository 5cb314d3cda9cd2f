"""What we promise of each model, measured again and held against the table in docs/promises.md (`make promises`)."""

"""Commands that analyze models: limits, cost, accuracy loss and its causes."""

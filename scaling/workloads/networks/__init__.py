"""Networks: functions from a size and a number of classes or words to layers."""

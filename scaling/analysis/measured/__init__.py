"""From records to the facts of one cell: step times, controls, causes of loss, traffic, devices."""

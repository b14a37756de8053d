"""Directors: pilots into batch queues, as many as there is work for, none lost and none doubled."""

"""What may be told about a call: from dense weights (`observe`), or by a second pass over the scores (`second_pass`),
given any backend's log-sum-exp, in memory that grows with the length."""

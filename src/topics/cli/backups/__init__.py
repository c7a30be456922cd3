"""`topics backup` and `topics restore`, and how both show what they do."""

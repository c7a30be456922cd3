"""How the systems under test are spoken to: ours and the peers, one class per way."""

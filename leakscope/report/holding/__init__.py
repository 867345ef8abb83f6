"""Who holds tensor memory now, told as text, table, JSON and picture."""

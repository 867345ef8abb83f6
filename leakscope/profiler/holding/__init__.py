"""Who holds tensor memory now, and what refers to this object?"""

"""Who holds tensor memory now, and what lets go of it?"""

"""How much memory has the host, and which allocation failed?"""

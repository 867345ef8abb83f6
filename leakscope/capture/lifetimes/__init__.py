"""When was each storage of one step made, last used and freed?"""

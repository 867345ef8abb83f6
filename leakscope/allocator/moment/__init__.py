"""What was alive at one moment, by line and by kind, and why was there no room for more?"""

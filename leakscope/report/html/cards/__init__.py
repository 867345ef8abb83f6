"""What does the card of a finding show?"""

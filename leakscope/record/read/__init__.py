"""What of a run's folder can be read, and what is damaged and left out?"""

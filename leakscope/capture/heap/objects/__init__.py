"""What does the process keep gaining that is no tensor: strings, numbers, records?"""

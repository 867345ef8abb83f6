"""What lay idle while memory was at its highest?"""

"""What is held where only C++ knows of it?"""

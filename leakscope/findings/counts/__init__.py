"""What beside tensors grows, step by step, and so will run out?"""

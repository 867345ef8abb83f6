"""What does leakscope's own backward do without the fault of a pipeline's?"""

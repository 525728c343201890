"""What is done with the worker and its engine: started, watched, put to sleep, swapped, brought back."""

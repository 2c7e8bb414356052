"""What a task on images and texts together is made of: its settings, and its models.

Both are vectors of one space: a model has a tower for images, and most have one for texts.
"""

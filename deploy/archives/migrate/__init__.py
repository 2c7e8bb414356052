"""`archive --from OLD.mar [NAME]`: move an archive of stock TorchServe to this project. Its code never runs.

old archive -> old_archives -> its files -> models, custom -> Move -> entry -> my/models.yaml, my/NAME/
"""

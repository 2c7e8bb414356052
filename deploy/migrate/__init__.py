"""`./archive.sh --from OLD.mar [NAME]`: what an archive of stock TorchServe becomes here. Its code is never run.

old archive -> old_archives -> its files -> models, custom -> Move -> entry -> my/models.yaml, my/NAME/
"""

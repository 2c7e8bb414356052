"""Builds hybrid embedding: a Hugging Face folder or hub id of bge-m3's kind -> the files of an archive."""

from deploy.archives.encoders import stage

FACTS = {
    "settings": "text.token_config:HybridConfig",
    "export_settings": ("trust_remote_code",),
    "takes_hub_ids": True,
    "samples": "texts",
}
__all__ = ["FACTS", "stage"]

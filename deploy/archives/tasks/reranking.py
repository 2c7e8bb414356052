"""Builds reranking: a Hugging Face folder or hub id -> the files of an archive."""

from deploy.archives.encoders import stage

FACTS = {
    "settings": "text.config:RerankingConfig",
    "export_settings": ("trust_remote_code",),
    "takes_hub_ids": True,
    "samples": "pairs",
}
__all__ = ["FACTS", "stage"]

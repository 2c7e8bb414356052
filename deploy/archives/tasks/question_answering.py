"""Builds question answering: a Hugging Face folder or hub id -> the files of an archive."""

from deploy.archives.encoders import stage

FACTS = {
    "settings": "text.config:QuestionAnsweringConfig",
    "export_settings": ("trust_remote_code",),
    "takes_hub_ids": True,
    "samples": "questions",
    "mode_before": "question_answering",
    "unserved": {
        ("canine",): "its tokens are characters without places in the text, which this task returns; use another model"
    },
}
__all__ = ["FACTS", "stage"]

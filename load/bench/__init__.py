"""Compares this deployment with its peers in one run, as ratios: `make bench`.

parts (resnet, texts, ...) -> contenders -> rounds -> rows -> one table. It may import handlers and deploy.
"""

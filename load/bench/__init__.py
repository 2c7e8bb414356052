"""Measures this deployment against its peers, side by side in one run, as ratios: `make bench`.

parts (resnet, texts, ...) -> contenders -> rounds -> rows -> one table. It may import handlers and deploy.
"""

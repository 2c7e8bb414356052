"""Workers in simulated time: what adaptive and classic schedules make of the same arrivals and pass times.

clients -> requests -> adaptive: the real scheduler and rhythm | classic: TorchServe's batches -> outcomes
"""

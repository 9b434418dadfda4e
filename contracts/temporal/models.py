"""Temporal names of the model scheduler; its input is `FleetWatch`."""

MODEL_SCHEDULER = "ModelScheduler"
MODEL_SCHEDULER_ID = "model-scheduler"
WATCH_MODELS = "watch_models"

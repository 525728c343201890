"""KEDA's external scaler: other people's autoscalers ask here how much there is to do."""

"""Reconciles InferenceDeployment resources into groups of worker pods."""

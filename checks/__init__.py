"""Measurement of the product: gates, exploiters, tuned experts and behaviours of the office, attacks on sandboxes, test servers.

Only a checkout (or the source archive) has this package. It imports `onthejob`, which finds it through `onthejob.checkout` alone.
"""

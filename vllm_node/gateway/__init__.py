"""The gateway: which requests reach which instance, whose keys count, and the certificate that it shows."""

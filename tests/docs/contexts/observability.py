import logging.config

NOT_RUN = {"exporter.otlp": "it sends to a collector"}

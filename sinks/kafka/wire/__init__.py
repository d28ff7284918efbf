"""How does Epochal speak to Kafka brokers without a client library?

Eleven requests, at versions that are fixed: each message keeps its form for as long as brokers take its version.
Nothing here knows of Spark, epochs, or sinks, and nothing but Python's standard library is used.

``primitives.py`` has the forms of numbers and texts, ``messages.py`` requests and answers, ``errors.py`` what can go
wrong.  ``reach.py`` reads librdkafka's options, with ``options.py`` for their values and ``tls.py`` for TLS.
``sasl.py`` says who we are.  ``connection.py`` is one socket; ``cluster.py`` finds leaders and coordinators, and
repeats with ``pauses.py`` what may be repeated.
"""

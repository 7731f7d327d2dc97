"""The service: a fleet of devices behind one address. Owns FastAPI and uvicorn; nothing outside the command imports it.

`server.py` is the process, `app.py` the API with its routes in `*_api.py`, `access.py` what every request passes
first, `core.py` who searches where, `job_search.py` one search, `fleet.py` the devices that workers offer,
`submission.py` jobs and uploaded tables, `lookups.py` answers from memory, `events.py` what followers are told.
"""

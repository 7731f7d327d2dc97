"""The service: a fleet of devices behind one address. It owns FastAPI and uvicorn; only the serve command imports it.

`server.py` is the process, `app.py` the API with its routes in `*_api.py`, `admission.py` the checks that every request
passes first, `access.py` what each token allows, `core.py` the assignment of searches to devices, `job_search.py` one
search, `fleet.py` the devices that workers offer, `submission.py` jobs and uploaded tables, `lookups.py` answers from
memory, `events.py` the events sent to clients that follow a job.
"""

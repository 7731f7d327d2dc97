"""The first released schema. Numbers below this one were used during development; such databases are refused.

0101 was used as well, and withdrawn: the next one is 0102, or such databases would be taken for current.
"""

import sqlalchemy as sa
from alembic import op

revision = "0100"
down_revision = None

JOB_STATES = "state IN ('queued', 'running', 'done', 'failed', 'cancelled')"


def upgrade() -> None:
    _ledger()
    _precautions()
    _knowledge()
    _service()


def _ledger() -> None:
    """Devices, problems, and what was measured and built."""
    _create(
        "devices",
        sa.Column("fingerprint", sa.String(64), nullable=False),
        *_texts("slug", "vendor", "model", "family"),
        *_texts("platform", "name", "version", "opencl_c_version", "driver", "limits"),
        sa.UniqueConstraint("fingerprint", name="uq_devices_fingerprint"),
    )
    op.create_index("ix_devices_slug", "devices", ["slug"])
    _create(
        "problems",
        sa.Column("family", sa.String(64), nullable=False),
        *_texts("spec", "label"),
        *(sa.Column(name, sa.BigInteger()) for name in ("m", "n", "k")),
        sa.Column("flops", sa.Double(), nullable=False),
    )
    op.create_index("ix_problems_family_spec", "problems", ["family", "spec"], unique=True)
    _create(
        "trials",
        *_subject("trials"),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("time_ns", sa.Double()),
        sa.Column("samples", sa.Text()),
        sa.Column("calls_per_sample", sa.BigInteger()),
        sa.Column("timer", sa.String(16)),
        *(sa.Column(name, sa.Double()) for name in ("prepare_ns", "build_ns", "error_ratio")),
        *(sa.Column(name, sa.BigInteger()) for name in ("private_memory_bytes", "kernel_work_group_limit")),
        *(sa.Column(name, sa.Double()) for name in ("launch_overhead_ns", "clock_mhz", "temperature_c")),
        *_texts("message"),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("identity", sa.String(32), nullable=False),
        *_provenance(),
        sa.CheckConstraint("purpose IN ('search', 'final', 'sentinel')", name=op.f("ck_trials_purpose")),
    )
    op.create_index("ix_trials_device_id_problem_id", "trials", ["device_id", "problem_id"])
    op.create_index("ix_trials_identity", "trials", ["identity"], unique=True)
    _create(
        "builds",
        *_subject("builds"),
        sa.Column("source_hash", sa.String(32), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("build_ns", sa.Double(), nullable=False),
        *_counts("private_memory_bytes", "work_group_limit", "binary_bytes"),
        *_texts("message"),
        *_provenance(),
    )
    op.create_index("ix_builds_device_id_source_hash", "builds", ["device_id", "source_hash"])


def _precautions() -> None:
    """The trials in flight, and the quarantine: configurations that are not run again unasked."""
    _create(
        "in_flight",
        *_subject("in_flight"),
        *_process(),
        *_texts("since", "worker"),
        sa.Column("session", sa.String(32), nullable=False),
        sa.Column("selector", sa.String(20), nullable=False),
    )
    _create(
        "quarantine",
        *_subject("quarantine"),
        sa.Column("reason", sa.String(16), nullable=False),
        *_texts("message", "since", "worker"),
        sa.CheckConstraint("reason IN ('lost', 'crashed', 'timed out')", name=op.f("ck_quarantine_reason")),
    )
    op.create_index("ix_quarantine_device_id_problem_id", "quarantine", ["device_id", "problem_id"])


def _knowledge() -> None:
    """Winners, predictors, and what was found about each device under each driver."""
    _create(
        "winners",
        *_texts("device", "configuration", "algorithm"),
        *_references("winners", "problem"),
        *(sa.Column(name, sa.Double(), nullable=False) for name in ("time_ns", "default_ns")),
        *(sa.Column(name, sa.Double()) for name in ("baseline_ns", "gain_low", "gain_high")),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("verifications", sa.Integer(), nullable=False),
        *_provenance(),
        sa.CheckConstraint("source IN ('measured', 'imported')", name=op.f("ck_winners_source")),
        sa.CheckConstraint("time_ns > 0", name=op.f("ck_winners_time_ns")),
        sa.CheckConstraint("samples >= 0", name=op.f("ck_winners_samples")),
        sa.CheckConstraint("verifications >= 0", name=op.f("ck_winners_verifications")),
    )
    op.create_index("ix_winners_device_problem_id", "winners", ["device", "problem_id"])
    _create("predictors", *_texts("device", "document"))
    op.create_index("ix_predictors_device", "predictors", ["device"], unique=True)
    _create(
        "checkups",
        sa.Column("fingerprint", sa.String(64), nullable=False),
        *_texts("device", "driver", "version", "document"),
        sa.Column("probes_version", sa.Integer(), nullable=False),
        sa.UniqueConstraint("fingerprint", name="uq_checkups_fingerprint"),
    )


def _service() -> None:
    """Jobs with a row for each problem, the enrolled workers, and which service has the database."""
    _create(
        "jobs",
        sa.Column("kind", sa.String(16), nullable=False),
        *_texts("device", "algorithms", "message", "created_at", "ended_at"),
        sa.Column("trials", sa.BigInteger()),
        sa.Column("seconds", sa.Double()),
        *_counts("seed"),
        *(sa.Column(name, sa.String(16), nullable=False) for name in ("model", "state")),
        sa.Column("submitter", sa.String(100), nullable=False),
        sa.CheckConstraint("kind IN ('tune', 'verify')", name=op.f("ck_jobs_kind")),
        sa.CheckConstraint(JOB_STATES, name=op.f("ck_jobs_state")),
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_index("ix_jobs_submitter", "jobs", ["submitter"])
    _create(
        "job_problems",
        *_references("job_problems", "job", "problem"),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("number", "attempts")),
        *_counts("calls"),
        sa.Column("trials_before", sa.BigInteger()),
        sa.Column("state", sa.String(16), nullable=False),
        *_texts("label", "candidate", "worker", "outcome", "message"),
        *(sa.Column(name, sa.Double(), nullable=False) for name in ("share_s", "spent_s")),
        sa.CheckConstraint(JOB_STATES, name=op.f("ck_job_problems_state")),
    )
    op.create_index("ix_job_problems_job_id", "job_problems", ["job_id"])
    op.create_index("ix_job_problems_state", "job_problems", ["state"])
    _create(
        "workers",
        sa.Column("name", sa.String(100), nullable=False),
        *(sa.Column(name, sa.String(64), nullable=False) for name in ("device", "secret_digest")),
        sa.Column("model", sa.String(16), nullable=False),
        sa.UniqueConstraint("name", "device", name="uq_workers_name_device"),
    )
    _create(
        "service_claim",
        sa.Column("role", sa.String(16), nullable=False),
        *_process(),
        *_counts("beats"),
        sa.UniqueConstraint("role", name="uq_service_claim_role"),
    )


def _create(table: str, *items: sa.schema.SchemaItem) -> None:
    key = sa.PrimaryKeyConstraint("id", name=f"pk_{table}")
    op.create_table(table, sa.Column("id", sa.Integer(), nullable=False), *items, key)


def _texts(*names: str) -> list[sa.schema.SchemaItem]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _counts(*names: str) -> list[sa.schema.SchemaItem]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]


def _references(table: str, *names: str) -> list[sa.schema.SchemaItem]:
    keys = [sa.ForeignKeyConstraint([f"{name}_id"], [f"{name}s.id"], name=f"fk_{table}_{name}_id") for name in names]
    return [*(sa.Column(f"{name}_id", sa.Integer(), nullable=False) for name in names), *keys]


def _subject(table: str) -> list[sa.schema.SchemaItem]:
    """A configuration at a problem on a device under one driver."""
    return [*_references(table, "device", "problem"), *_texts("configuration", "algorithm")]


def _process() -> list[sa.schema.SchemaItem]:
    run = sa.Column("run", sa.String(32), nullable=False)
    return [*_texts("host", "process_start"), *_counts("process_id"), run]


def _provenance() -> list[sa.schema.SchemaItem]:
    version = sa.Column("space_version", sa.Integer(), nullable=False)
    return [*_texts("driver", "template_hash", "tool_version", "measured_at"), version]

"""Devices, problems, the ledger of trials, winners, and the view of the best configurations."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

BEST_CONFIGURATIONS = """
CREATE VIEW best_configurations AS
WITH
-- The newest measured winner and the fastest imported one, confirmed by finals and provisional apart.
newest AS (
    SELECT
        winners.*,
        CASE WHEN samples > 0 THEN 1 ELSE 0 END AS is_final,
        ROW_NUMBER() OVER (
            PARTITION BY device, problem_id, source, CASE WHEN samples > 0 THEN 1 ELSE 0 END
            ORDER BY CASE WHEN source = 'imported' THEN time_ns ELSE 0 END, id DESC
        ) AS place
    FROM winners
),
-- Confirmed before provisional, then the faster; where they tie, the one measured here ('measured' > 'imported').
ranked AS (
    SELECT
        newest.*,
        ROW_NUMBER() OVER (
            PARTITION BY device, problem_id
            ORDER BY is_final DESC, time_ns, source DESC
        ) AS rank_here
    FROM newest
    WHERE place = 1
)
SELECT
    ranked.device AS device,
    problems.family AS family,
    problems.label AS problem,
    problems.m AS m,
    problems.n AS n,
    problems.k AS k,
    ranked.algorithm AS algorithm,
    ranked.configuration AS configuration,
    ranked.time_ns AS time_ns,
    problems.flops / ranked.time_ns AS gflops,
    ranked.default_ns / ranked.time_ns AS gain_over_default,
    ranked.gain_low AS gain_low,
    ranked.gain_high AS gain_high,
    ranked.baseline_ns / ranked.time_ns AS gain_over_baseline,
    ranked.samples AS samples,
    ranked.is_default AS is_default,
    ranked.source AS source,
    ranked.driver AS driver,
    ranked.template_hash AS template_hash,
    ranked.space_version AS space_version,
    ranked.tool_version AS tool_version,
    ranked.measured_at AS measured_at,
    problems.spec AS spec,
    ranked.default_ns AS default_ns,
    ranked.baseline_ns AS baseline_ns
FROM ranked
JOIN problems ON problems.id = ranked.problem_id
WHERE ranked.rank_here = 1
"""


def upgrade() -> None:
    op.create_table(
        "devices",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        *_texts("slug", "vendor", "model", "family"),
        *_texts("platform", "name", "version", "opencl_c_version", "driver", "limits"),
        sa.PrimaryKeyConstraint("id", name="pk_devices"),
        sa.UniqueConstraint("fingerprint", name="uq_devices_fingerprint"),
    )
    op.create_index("ix_devices_slug", "devices", ["slug"])
    op.create_table(
        "problems",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("family", sa.String(64), nullable=False),
        *_texts("spec", "label"),
        sa.Column("m", sa.BigInteger()),
        sa.Column("n", sa.BigInteger()),
        sa.Column("k", sa.BigInteger()),
        sa.Column("flops", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_problems"),
    )
    op.create_index("ix_problems_family_spec", "problems", ["family", "spec"], unique=True)
    op.create_table(
        "trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        *_texts("configuration", "algorithm"),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("time_ns", sa.Double()),
        sa.Column("samples", sa.Text()),
        sa.Column("calls_per_sample", sa.BigInteger()),
        sa.Column("timer", sa.String(16)),
        sa.Column("prepare_ns", sa.Double()),
        sa.Column("build_ns", sa.Double()),
        sa.Column("error_ratio", sa.Double()),
        sa.Column("private_memory_bytes", sa.BigInteger()),
        sa.Column("kernel_work_group_limit", sa.BigInteger()),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        *_provenance(),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name="fk_trials_device_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name="fk_trials_problem_id"),
        sa.CheckConstraint("purpose IN ('search', 'final')", name=op.f("ck_trials_purpose")),
    )
    op.create_index("ix_trials_device_id_problem_id", "trials", ["device_id", "problem_id"])
    op.create_table(
        "winners",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        *_texts("configuration", "algorithm"),
        sa.Column("time_ns", sa.Double(), nullable=False),
        sa.Column("default_ns", sa.Double(), nullable=False),
        sa.Column("baseline_ns", sa.Double()),
        sa.Column("gain_low", sa.Double()),
        sa.Column("gain_high", sa.Double()),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        *_provenance(),
        sa.PrimaryKeyConstraint("id", name="pk_winners"),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name="fk_winners_problem_id"),
        sa.CheckConstraint("source IN ('measured', 'imported')", name=op.f("ck_winners_source")),
        sa.CheckConstraint("time_ns > 0", name=op.f("ck_winners_time_ns")),
        sa.CheckConstraint("samples >= 0", name=op.f("ck_winners_samples")),
    )
    op.create_index("ix_winners_device_problem_id", "winners", ["device", "problem_id"])
    op.execute(BEST_CONFIGURATIONS)


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _provenance() -> list[sa.Column[str] | sa.Column[int]]:
    return [
        *_texts("driver", "template_hash"),
        sa.Column("space_version", sa.Integer(), nullable=False),
        *_texts("tool_version", "measured_at"),
    ]

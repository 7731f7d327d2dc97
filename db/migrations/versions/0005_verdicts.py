"""Why a winner is the winner, and how often its result was found right."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

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
    ranked.baseline_ns AS baseline_ns,
    ranked.verdict AS verdict,
    ranked.verifications AS verifications
FROM ranked
JOIN problems ON problems.id = ranked.problem_id
WHERE ranked.rank_here = 1
"""

PRESUMED = """
UPDATE winners SET verifications = 0, verdict = CASE
    WHEN samples = 0 THEN 'provisional'
    WHEN is_default THEN 'default'
    ELSE 'faster'
END
"""
"""What is known of a winner from before: `Verdict.presumed` says the same."""


def upgrade() -> None:
    op.execute("DROP VIEW best_configurations")
    with op.batch_alter_table("winners") as winners:
        winners.add_column(sa.Column("verdict", sa.String(16)))
        winners.add_column(sa.Column("verifications", sa.Integer()))
    op.execute(PRESUMED)
    with op.batch_alter_table("winners") as winners:
        winners.alter_column("verdict", existing_type=sa.String(16), nullable=False)
        winners.alter_column("verifications", existing_type=sa.Integer(), nullable=False)
        winners.create_check_constraint("verifications", "verifications >= 0")
    op.execute(BEST_CONFIGURATIONS)

/* How a configuration of a reduction is run: the twin of autotune/kernels/reduce/plan.py. For autotune.c alone. */

enum { AUTOTUNE_REDUCE_LEAST_SUB_GROUP = 16 };

static long long autotune_reduce_rows_per_group(const struct autotune_reduce_configuration *c) {
    const long long items = c->work_group_size;
    switch (c->algorithm) {
    case AUTOTUNE_REDUCE_ALGORITHM_SERIAL:
        return items > 1 ? items : 1;
    case AUTOTUNE_REDUCE_ALGORITHM_SUB_GROUP:
        if (c->row_of != AUTOTUNE_REDUCE_SUB_GROUP || items < AUTOTUNE_REDUCE_LEAST_SUB_GROUP) return 1;
        return items / AUTOTUNE_REDUCE_LEAST_SUB_GROUP;
    case AUTOTUNE_REDUCE_ALGORITHM_LOCAL_TREE:
    case AUTOTUNE_REDUCE_ALGORITHM_SHUFFLE:
        return c->rows_per_group;
    default:
        return 1;
    }
}

/* What the source must know of the sizes, as one number. */
static int autotune_reduce_variant(
        const struct autotune_reduce_problem *p, const struct autotune_reduce_configuration *c, long long rows) {
    const long long vectors = p->channels / c->vector_width, shared = c->work_group_size / rows;
    const long long items = c->algorithm == AUTOTUNE_REDUCE_ALGORITHM_SERIAL || shared < 1 ? 1 : shared;
    const long long in_pass = c->unroll * items;
    int variant = vectors >= in_pass;
    variant = variant * 2 + (vectors % in_pass != 0);
    variant = variant * 2 + (p->channels % c->vector_width != 0);
    return variant * 2 + (p->batch % rows != 0);
}

static void autotune_plan_reduce(
        const struct autotune_reduce_problem *p, const struct autotune_reduce_configuration *c,
        struct autotune_plan *plan) {
    const long long bytes = p->dtype == AUTOTUNE_REDUCE_FLOAT16 ? 2 : 4, items = c->work_group_size;
    const long long rows = autotune_reduce_rows_per_group(c), groups = (p->batch + rows - 1) / rows;
    struct autotune_launch *launch;
    memset(plan, 0, sizeof *plan);
    plan->variant = autotune_reduce_variant(p, c, rows);
    autotune_add_buffer(plan, 0, bytes * p->batch * p->pitch);
    autotune_add_buffer(plan, 1, bytes * p->batch);
    if (c->algorithm == AUTOTUNE_REDUCE_ALGORITHM_SPLIT_ROW) {
        const int parts = autotune_add_buffer(plan, -1, 4 * p->batch * c->parts);
        const int is_one_launch = c->combine != AUTOTUNE_REDUCE_NO_WORD && c->combine != AUTOTUNE_REDUCE_LAUNCH;
        launch = autotune_add_launch(plan, "reduce", 2, c->parts * items, p->batch, 1);
        autotune_set_local_size(launch, items, 1);
        autotune_pass(launch, AUTOTUNE_IS_BUFFER, 0);
        autotune_pass_number(plan, launch, p->pitch);
        autotune_pass(launch, AUTOTUNE_IS_BUFFER, is_one_launch ? 1 : parts);
        autotune_pass_number(plan, launch, p->channels);
        if (is_one_launch) {
            autotune_pass(launch, AUTOTUNE_IS_BUFFER, parts);
            autotune_pass(launch, AUTOTUNE_IS_BUFFER, autotune_add_counters(plan, p->batch));
            return;
        }
        launch = autotune_add_launch(plan, "combine", 1, items * p->batch, 1, 1);
        autotune_set_local_size(launch, items, 1);
        autotune_pass(launch, AUTOTUNE_IS_BUFFER, parts);
        autotune_pass(launch, AUTOTUNE_IS_BUFFER, 1);
        autotune_pass_number(plan, launch, p->channels);
        return;
    }
    launch = autotune_add_launch(plan, "reduce", 1, items ? groups * items : p->batch, 1, 1);
    if (items) autotune_set_local_size(launch, items, 1);
    autotune_pass(launch, AUTOTUNE_IS_BUFFER, 0);
    autotune_pass_number(plan, launch, p->pitch);
    autotune_pass(launch, AUTOTUNE_IS_BUFFER, 1);
    autotune_pass_number(plan, launch, p->batch);
    autotune_pass_number(plan, launch, p->channels);
}

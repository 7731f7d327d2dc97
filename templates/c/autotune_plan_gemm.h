/* How a configuration of GEMM is run: the twin of autotune/kernels/gemm/plan.py. For autotune.c alone. */

enum { AUTOTUNE_GEMM_LEAST_COMBINING = 32 };

/* Where a kernel finds A or B: a buffer, its pitch, and the elements from matrix to matrix of a batch. */
struct autotune_gemm_operand {
    int buffer;
    long long pitch, stride;
};

struct autotune_gemm_planner {
    const struct autotune_gemm_problem *p;
    const struct autotune_gemm_configuration *c;
    struct autotune_plan *plan;
    long long micro_m, micro_n, tile_m, columns, rows, depth, split;
    long long stored_bytes, sum_bytes, result_bytes;
    cl_channel_type pixels;
    int pads, is_aligned, is_one_launch;
};

/* Of a parameter that its algorithm may lack. */
static long long autotune_gemm_or_one(int value) { return value ? value : 1; }

static void autotune_gemm_pass_copy(
        struct autotune_gemm_planner *g, struct autotune_launch *launch, int source, long long stride,
        long long row_step, long long column_step, long long rows, long long columns) {
    autotune_pass(launch, AUTOTUNE_IS_BUFFER, source);
    autotune_pass_number(g->plan, launch, stride);
    autotune_pass_number(g->plan, launch, row_step);
    autotune_pass_number(g->plan, launch, column_step);
    autotune_pass_number(g->plan, launch, rows);
    autotune_pass_number(g->plan, launch, columns);
}

/* Copies rows x columns into zero-padded rows without a gap. */
static struct autotune_gemm_operand autotune_gemm_pack(
        struct autotune_gemm_planner *g, int source, long long stride, long long row_step, long long column_step,
        long long rows, long long columns, long long packed_rows, long long pitch) {
    struct autotune_gemm_operand found;
    struct autotune_launch *launch;
    found.buffer = autotune_add_buffer(g->plan, -1, g->stored_bytes * g->p->batch * packed_rows * pitch);
    found.pitch = pitch;
    found.stride = packed_rows * pitch;
    launch = autotune_add_launch(g->plan, "pack", 3, pitch, packed_rows, g->p->batch);
    autotune_gemm_pass_copy(g, launch, source, stride, row_step, column_step, rows, columns);
    autotune_pass(launch, AUTOTUNE_IS_BUFFER, found.buffer);
    autotune_pass_number(g->plan, launch, pitch);
    return found;
}

/* Copies B into padded rows that hold four elements of k of one column, then four of the next. */
static struct autotune_gemm_operand autotune_gemm_pack_quads(
        struct autotune_gemm_planner *g, long long row_step, long long column_step) {
    struct autotune_gemm_operand found;
    struct autotune_launch *launch;
    found.buffer = autotune_add_buffer(g->plan, -1, g->stored_bytes * g->p->batch * g->depth * g->columns);
    found.pitch = 4 * g->columns;
    found.stride = g->depth * g->columns;
    launch = autotune_add_launch(g->plan, "pack_quads", 3, g->columns, g->depth / 4, g->p->batch);
    autotune_gemm_pass_copy(g, launch, 1, g->p->stride_b, row_step, column_step, g->p->k, g->p->n);
    autotune_pass(launch, AUTOTUNE_IS_BUFFER, found.buffer);
    return found;
}

static int autotune_gemm_add_image(struct autotune_gemm_planner *g, long long columns, long long height) {
    const int number = autotune_add_buffer(g->plan, -1, 0);
    g->plan->buffers[number].width = (columns + 3) / 4;
    g->plan->buffers[number].height = height;
    g->plan->buffers[number].pixels = g->pixels;
    return number;
}

/* Copies rows x columns into pixels of four columns; the matrices of a batch one below the other. */
static struct autotune_gemm_operand autotune_gemm_pack_image(
        struct autotune_gemm_planner *g, int source, long long stride, long long row_step, long long column_step,
        long long rows, long long columns) {
    struct autotune_gemm_operand found;
    struct autotune_launch *launch;
    found.buffer = autotune_gemm_add_image(g, columns, rows * g->p->batch);
    found.pitch = 0;
    found.stride = rows;
    launch = autotune_add_launch(g->plan, "pack_image", 3, (columns + 3) / 4, rows, g->p->batch);
    autotune_gemm_pass_copy(g, launch, source, stride, row_step, column_step, rows, columns);
    autotune_pass(launch, AUTOTUNE_IS_BUFFER, found.buffer);
    return found;
}

/* Reads rows x columns where they are as pixels of four columns. */
static struct autotune_gemm_operand autotune_gemm_view(
        struct autotune_gemm_planner *g, int source, long long stride, long long pitch, long long rows,
        long long columns) {
    struct autotune_gemm_operand found;
    const long long rows_apart = stride / pitch;
    found.buffer = autotune_gemm_add_image(g, columns, (g->p->batch - 1) * rows_apart + rows);
    found.pitch = 0;
    found.stride = rows_apart;
    g->plan->buffers[found.buffer].view_of = source;
    g->plan->buffers[found.buffer].pitch_bytes = pitch * g->stored_bytes;
    return found;
}

static struct autotune_gemm_operand autotune_gemm_place_a(struct autotune_gemm_planner *g) {
    const struct autotune_gemm_problem *p = g->p;
    const long long row_step = p->trans_a ? 1 : p->lda, column_step = p->trans_a ? p->lda : 1;
    struct autotune_gemm_operand found;
    if (g->c->a_storage == AUTOTUNE_GEMM_IMAGE)
        return autotune_gemm_pack_image(g, 0, p->stride_a, row_step, column_step, p->m, p->k);
    if (g->c->a_storage == AUTOTUNE_GEMM_IMAGE_VIEW) return autotune_gemm_view(g, 0, p->stride_a, p->lda, p->m, p->k);
    if (g->pads) return autotune_gemm_pack(g, 0, p->stride_a, row_step, column_step, p->m, p->k, g->rows, g->depth);
    found.buffer = 0;
    found.pitch = p->lda;
    found.stride = p->stride_a;
    return found;
}

static struct autotune_gemm_operand autotune_gemm_place_b(struct autotune_gemm_planner *g) {
    const struct autotune_gemm_problem *p = g->p;
    const long long row_step = p->trans_b ? 1 : p->ldb, column_step = p->trans_b ? p->ldb : 1;
    struct autotune_gemm_operand found;
    if (g->c->b_storage == AUTOTUNE_GEMM_IMAGE)
        return autotune_gemm_pack_image(g, 1, p->stride_b, row_step, column_step, p->k, p->n);
    if (g->c->b_storage == AUTOTUNE_GEMM_IMAGE_VIEW) return autotune_gemm_view(g, 1, p->stride_b, p->ldb, p->k, p->n);
    if (g->c->b_storage == AUTOTUNE_GEMM_TRANSPOSED) {
        const long long pitch = autotune_round_up(g->depth, autotune_gemm_or_one(g->c->vector_width));
        return autotune_gemm_pack(g, 1, p->stride_b, column_step, row_step, p->n, p->k, p->n, pitch);
    }
    if (g->pads && g->c->integer_dot != AUTOTUNE_GEMM_NO_WORD && g->c->integer_dot != AUTOTUNE_GEMM_OFF)
        return autotune_gemm_pack_quads(g, row_step, column_step);
    if (g->pads) return autotune_gemm_pack(g, 1, p->stride_b, row_step, column_step, p->k, p->n, g->depth, g->columns);
    found.buffer = 1;
    found.pitch = p->ldb;
    found.stride = p->stride_b;
    return found;
}

static void autotune_gemm_pass_result(
        struct autotune_gemm_planner *g, struct autotune_launch *launch, int c, long long ldc, long long stride_c) {
    autotune_pass(launch, AUTOTUNE_IS_BUFFER, c);
    autotune_pass_number(g->plan, launch, ldc);
    autotune_pass_number(g->plan, launch, stride_c);
    autotune_pass_number(g->plan, launch, g->p->m);
    autotune_pass_number(g->plan, launch, g->p->n);
}

/* For one launch: what each work-group adds to C, macro-tile by macro-tile, and counters of those. */
static void autotune_gemm_pass_parts(
        struct autotune_gemm_planner *g, struct autotune_launch *launch, long long tiles, long long work_items) {
    const long long in_tile = work_items * g->micro_m * g->micro_n;
    const int parts = autotune_add_buffer(g->plan, -1, g->sum_bytes * g->split * tiles * in_tile);
    autotune_pass(launch, AUTOTUNE_IS_BUFFER, parts);
    autotune_pass(launch, AUTOTUNE_IS_BUFFER, autotune_add_counters(g->plan, tiles));
}

static void autotune_gemm_multiply(
        struct autotune_gemm_planner *g, struct autotune_gemm_operand a, struct autotune_gemm_operand b) {
    const struct autotune_gemm_problem *p = g->p;
    const long long across = (p->n + g->micro_n - 1) / g->micro_n, down = (p->m + g->micro_m - 1) / g->micro_m;
    const long long wide = autotune_gemm_or_one(g->c->work_group_n), high = autotune_gemm_or_one(g->c->work_group_m);
    const long long deep = autotune_gemm_or_one(g->c->work_group_k);
    long long x = across, y = down, local_x = 0, local_y = 0;
    struct autotune_launch *launch;
    const int adds_up = g->split > 1 && !g->is_one_launch; /* by another launch */
    int result = 2;
    if (g->c->algorithm == AUTOTUNE_GEMM_ALGORITHM_ROW) {
        local_x = wide;
        local_y = deep;
        x = autotune_round_up(across, wide);
        y = down * deep;
    } else if (g->c->algorithm == AUTOTUNE_GEMM_ALGORITHM_COLUMN) {
        local_x = deep;
        local_y = high;
        x = across * deep;
        y = autotune_round_up(down, high);
    } else if (g->c->algorithm == AUTOTUNE_GEMM_ALGORITHM_PANEL) {
        local_x = local_y = 1;
        y = (p->m + g->tile_m - 1) / g->tile_m;
    } else if (g->c->work_group_n != 0) {
        local_x = wide;
        local_y = high;
        x = autotune_round_up(across, wide);
        y = autotune_round_up(down, high);
    }
    if (adds_up) result = autotune_add_buffer(g->plan, -1, g->sum_bytes * g->split * p->batch * p->m * p->n);
    launch = autotune_add_launch(g->plan, "gemm", 3, x, y, g->split * p->batch);
    if (local_x) autotune_set_local_size(launch, local_x, local_y);
    autotune_pass(launch, AUTOTUNE_IS_BUFFER, a.buffer);
    autotune_pass_number(g->plan, launch, a.pitch);
    autotune_pass_number(g->plan, launch, a.stride);
    autotune_pass(launch, AUTOTUNE_IS_BUFFER, b.buffer);
    autotune_pass_number(g->plan, launch, b.pitch);
    autotune_pass_number(g->plan, launch, b.stride);
    if (adds_up) autotune_gemm_pass_result(g, launch, result, p->n, p->m * p->n);
    else autotune_gemm_pass_result(g, launch, result, p->ldc, p->stride_c);
    autotune_pass_number(g->plan, launch, g->pads ? g->depth : p->k);
    autotune_pass(launch, AUTOTUNE_IS_ALPHA, 0);
    autotune_pass(launch, AUTOTUNE_IS_BETA, 0);
    if (g->is_one_launch) {
        const int is_tile = g->c->algorithm == AUTOTUNE_GEMM_ALGORITHM_LOCAL_TILE;
        const long long tiles = x / local_x * (y / local_y) * p->batch;
        autotune_gemm_pass_parts(g, launch, tiles, is_tile ? local_x * local_y : local_x);
    }
    if (adds_up) {
        const long long items = local_x ? local_x * local_y : 1;
        const long long least = AUTOTUNE_GEMM_LEAST_COMBINING, width = g->is_aligned ? 4 : 1;
        const long long vectors = (p->m * p->n + width - 1) / width;
        launch = autotune_add_launch(
            g->plan, "combine", 2, autotune_round_up(vectors, items > least ? items : least), p->batch, 1);
        if (items >= least) autotune_set_local_size(launch, items, 1);
        autotune_pass(launch, AUTOTUNE_IS_BUFFER, result);
        autotune_gemm_pass_result(g, launch, 2, p->ldc, p->stride_c);
        autotune_pass(launch, AUTOTUNE_IS_ALPHA, 0);
        autotune_pass(launch, AUTOTUNE_IS_BETA, 0);
    }
}

/* What the source must know of the sizes, as one number: the templates ask no more than this. */
static int autotune_gemm_variant(const struct autotune_gemm_planner *g) {
    static const int remainders[4] = {0, 1, 2, 1};
    const struct autotune_gemm_problem *p = g->p;
    int variant = p->batch > 1;
    variant = variant * 2 + (p->m % g->tile_m != 0);
    variant = variant * 2 + (g->columns != p->n);
    variant = variant * 2 + (g->depth != p->k && !g->pads);
    variant = variant * 3 + remainders[p->m % 4];
    variant = variant * 3 + remainders[p->n % 4];
    return variant * 2 + g->is_aligned;
}

static void autotune_plan_gemm(
        const struct autotune_gemm_problem *p, const struct autotune_gemm_configuration *c,
        struct autotune_plan *plan) {
    struct autotune_gemm_planner g;
    struct autotune_gemm_operand a, b;
    long long tile_n, step_k = autotune_gemm_or_one(c->unroll);
    memset(plan, 0, sizeof *plan);
    memset(&g, 0, sizeof g);
    g.p = p;
    g.c = c;
    g.plan = plan;
    g.micro_m = autotune_gemm_or_one(c->micro_tile_m);
    g.micro_n = autotune_gemm_or_one(c->micro_tile_n);
    g.tile_m = g.micro_m;
    tile_n = g.micro_n;
    if (c->algorithm == AUTOTUNE_GEMM_ALGORITHM_LOCAL_TILE) {
        g.tile_m *= c->work_group_m;
        tile_n *= c->work_group_n;
        step_k = c->tile_k;
    } else if (c->algorithm == AUTOTUNE_GEMM_ALGORITHM_PANEL) {
        g.tile_m *= c->tiles_m;
    } else if (c->algorithm == AUTOTUNE_GEMM_ALGORITHM_DOT || c->algorithm == AUTOTUNE_GEMM_ALGORITHM_COLUMN) {
        step_k *= autotune_gemm_or_one(c->vector_width);
    }
    g.rows = autotune_round_up(p->m, g.tile_m);
    g.columns = autotune_round_up(p->n, tile_n);
    g.depth = autotune_round_up(p->k, step_k);
    g.split = autotune_gemm_or_one(c->split_k);
    g.pads = c->edges == AUTOTUNE_GEMM_PAD;
    g.is_one_launch = c->combine != AUTOTUNE_GEMM_NO_WORD && c->combine != AUTOTUNE_GEMM_LAUNCH;
    g.is_aligned = p->ldc % 4 == 0 && p->n % 4 == 0 && p->stride_c % 4 == 0;
    g.stored_bytes = p->mode == AUTOTUNE_GEMM_FLOAT32 ? 4 : p->mode == AUTOTUNE_GEMM_INT8 ? 1 : 2;
    g.sum_bytes = p->mode == AUTOTUNE_GEMM_FLOAT16_ACC16 ? 2 : 4;
    g.result_bytes = p->mode == AUTOTUNE_GEMM_FLOAT32 || p->mode == AUTOTUNE_GEMM_INT8 ? 4 : 2;
    g.pixels = p->mode == AUTOTUNE_GEMM_FLOAT32 ? CL_FLOAT : p->mode == AUTOTUNE_GEMM_INT8 ? CL_SIGNED_INT8 : CL_HALF_FLOAT;
    autotune_add_buffer(plan, 0, g.stored_bytes * p->batch * p->stride_a);
    autotune_add_buffer(plan, 1, g.stored_bytes * p->batch * p->stride_b);
    autotune_add_buffer(plan, 2, g.result_bytes * p->batch * p->stride_c);
    plan->scales_are_whole = p->mode == AUTOTUNE_GEMM_INT8;
    plan->variant = autotune_gemm_variant(&g);
    a = autotune_gemm_place_a(&g);
    b = autotune_gemm_place_b(&g);
    autotune_gemm_multiply(&g, a, b);
}

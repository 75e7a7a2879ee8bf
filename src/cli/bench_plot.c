/* Plots time over size as an SVG file. Both axes are logarithmic. There is one curve per algorithm and transport.
 * The file references nothing outside of it.
 *
 *      us |            x--o          x algorithm
 *         |      x--o                o another
 *         | x--o
 *         +----------------- bytes
 */
#include "cli/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 860, HEIGHT = 520, LEFT = 80, RIGHT = 200, TOP = 50, BOTTOM = 60, MAX_CURVES = 28, LEGEND_STEP = 16 };

/* The palette of Okabe and Ito, which people with colour blindness can distinguish. */
static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};
enum { N_COLOURS = sizeof colours / sizeof *colours };
static const char *const dashes[(MAX_CURVES + N_COLOURS - 1) / N_COLOURS] = {"none", "6 3", "2 3", "9 3 2 3"};

typedef struct axis {
    double low, high; /* range, as logarithms to base 2 (bytes) or 10 (us) */
    double from, to;  /* positions of low and high in the picture */
} axis;

typedef struct plot {
    FILE *file;
    const lksi_bench_row *rows;
    size_t n_rows;
    const lksi_bench_row *curves[MAX_CURVES]; /* the first row of each */
    int n_curves;
    bool has_transports; /* more than one */
    bool has_sizes;      /* a barrier has none */
    axis x, y;
} plot;

static double place(const axis *a, double value) {
    double span = a->high - a->low;
    return a->from + (span > 0 ? (value - a->low) / span : 0.5) * (a->to - a->from);
}
static double x_of(const plot *p, size_t nbytes) { return place(&p->x, log2(nbytes > 0 ? (double)nbytes : 1)); }
static double y_of(const plot *p, double time_us) { return place(&p->y, log10(time_us > 1e-3 ? time_us : 1e-3)); }

/* The y axis covers whole decades of time, the x axis whole powers of two, so every point is inside. */
static void set_axes(plot *p) {
    p->x = (axis){.low = 64, .high = 0, .from = LEFT, .to = WIDTH - RIGHT};
    p->y = (axis){.low = 64, .high = -3, .from = HEIGHT - BOTTOM, .to = TOP};
    for (size_t i = 0; i < p->n_rows; i++) {
        double bytes = log2(p->rows[i].nbytes > 0 ? (double)p->rows[i].nbytes : 1);
        double time = log10(p->rows[i].time_us_median > 1e-3 ? p->rows[i].time_us_median : 1e-3);
        p->has_sizes |= p->rows[i].nbytes > 0;
        p->x.low = fmin(p->x.low, floor(bytes)), p->x.high = fmax(p->x.high, ceil(bytes));
        p->y.low = fmin(p->y.low, floor(time)), p->y.high = fmax(p->y.high, ceil(time));
    }
    if (p->y.high <= p->y.low) p->y.high = p->y.low + 1;
}

static bool is_on(const plot *p, const lksi_bench_row *row, int curve) {
    return strcmp(row->algorithm, p->curves[curve]->algorithm) == 0 &&
           strcmp(row->transport, p->curves[curve]->transport) == 0;
}

static void find_curves(plot *p) {
    for (size_t i = 0; i < p->n_rows; i++) {
        int known = 0;
        while (known < p->n_curves && !is_on(p, &p->rows[i], known)) known++;
        if (known == p->n_curves && known < MAX_CURVES) p->curves[p->n_curves++] = &p->rows[i];
        p->has_transports |= strcmp(p->rows[i].transport, p->rows[0].transport) != 0;
    }
}

static void print_bytes(char *text, size_t text_nbytes, double nbytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    for (; nbytes >= 1024 && unit < 4; unit++) nbytes /= 1024;
    snprintf(text, text_nbytes, "%.4g %s", nbytes, units[unit]);
}

static void print_time(char *text, size_t text_nbytes, double time_us) {
    if (time_us >= 1e6)
        snprintf(text, text_nbytes, "%.4g s", time_us / 1e6);
    else if (time_us >= 1e3)
        snprintf(text, text_nbytes, "%.4g ms", time_us / 1e3);
    else
        snprintf(text, text_nbytes, "%.4g \302\265s", time_us);
}

/* Draws a grid line about every 60 pixels, at powers of two. */
static void draw_x_axis(const plot *p) {
    int low = (int)p->x.low, high = (int)p->x.high, step = (high - low) / 10 + 1;
    char text[32];
    for (int at = low; at <= high && p->has_sizes; at += step) {
        double x = place(&p->x, at);
        print_bytes(text, sizeof text, exp2(at));
        fprintf(p->file, "<line x1='%.1f' y1='%d' x2='%.1f' y2='%d' class='grid'/>\n", x, TOP, x, HEIGHT - BOTTOM);
        fprintf(p->file, "<text x='%.1f' y='%d' text-anchor='middle'>%s</text>\n", x, HEIGHT - BOTTOM + 18, text);
    }
    fprintf(p->file, "<text x='%d' y='%d' text-anchor='middle'>%s</text>\n", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14,
            p->has_sizes ? "size" : "no data");
}

static void draw_y_axis(const plot *p) {
    char text[32];
    for (int at = (int)p->y.low; at <= (int)p->y.high; at++) {
        double y = place(&p->y, at);
        print_time(text, sizeof text, pow(10, at));
        fprintf(p->file, "<line x1='%d' y1='%.1f' x2='%d' y2='%.1f' class='grid'/>\n", LEFT, y, WIDTH - RIGHT, y);
        fprintf(p->file, "<text x='%d' y='%.1f' text-anchor='end'>%s</text>\n", LEFT - 8, y + 4, text);
    }
    fprintf(p->file, "<text x='18' y='%d' text-anchor='middle' transform='rotate(-90 18 %d)'>time of a call</text>\n",
            (TOP + HEIGHT - BOTTOM) / 2, (TOP + HEIGHT - BOTTOM) / 2);
}

/* `auto` is drawn first and wide, so that it is visible under the curve of the algorithm that it chose. */
static const char *stroke_of(const plot *p, int curve) {
    return strcmp(p->curves[curve]->algorithm, "auto") == 0 ? "stroke-width='7' stroke-opacity='0.35'"
                                                            : "stroke-width='2'";
}

static void name_curve(const plot *p, int curve, char name[64]) {
    const lksi_bench_row *first = p->curves[curve];
    if (p->has_transports)
        snprintf(name, 64, "%s, %s", first->algorithm, first->transport);
    else
        snprintf(name, 64, "%s", first->algorithm);
}

static void draw_curve(const plot *p, int curve) {
    const char *colour = colours[curve % N_COLOURS], *stroke = stroke_of(p, curve), *dash = dashes[curve / N_COLOURS];
    char name[64];
    name_curve(p, curve, name);
    fprintf(p->file, "<polyline fill='none' stroke='%s' %s stroke-dasharray='%s' points='", colour, stroke, dash);
    for (size_t i = 0; i < p->n_rows; i++)
        if (is_on(p, &p->rows[i], curve))
            fprintf(p->file, "%.1f,%.1f ", x_of(p, p->rows[i].nbytes), y_of(p, p->rows[i].time_us_median));
    fprintf(p->file, "'/>\n");
    for (size_t i = 0; i < p->n_rows; i++)
        if (is_on(p, &p->rows[i], curve))
            fprintf(p->file,
                    "<circle cx='%.1f' cy='%.1f' r='3' fill='%s'><title>%s, %zu bytes: %.2f us</title></circle>\n",
                    x_of(p, p->rows[i].nbytes), y_of(p, p->rows[i].time_us_median), colour, name, p->rows[i].nbytes,
                    p->rows[i].time_us_median);
    int y = TOP + 14 + LEGEND_STEP * curve, x = WIDTH - RIGHT + 16;
    fprintf(p->file, "<line x1='%d' y1='%d' x2='%d' y2='%d' stroke='%s' %s stroke-dasharray='%s'/>\n", x, y, x + 24, y,
            colour, stroke, dash);
    fprintf(p->file, "<text x='%d' y='%d'>%s</text>\n", x + 30, y + 4, name);
}

static void draw(const plot *p) {
    const lksi_bench_row *first = &p->rows[0];
    fprintf(p->file, "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' viewBox='0 0 %d %d'>\n", WIDTH,
            HEIGHT, WIDTH, HEIGHT);
    fprintf(p->file, "<style>text { font: 13px sans-serif; fill: #222 } .title { font-size: 16px } "
                     ".grid { stroke: #ddd; stroke-width: 1 }</style>\n");
    fprintf(p->file, "<rect width='%d' height='%d' fill='#fff'/>\n", WIDTH, HEIGHT);
    fprintf(p->file, "<text class='title' x='%d' y='28'>%s, %s, %d rank%s%s%s%s</text>\n", LEFT, first->op, first->type,
            first->ranks, first->ranks > 1 ? "s" : "", p->has_transports ? "" : ", ",
            p->has_transports ? "" : first->transport, first->is_symmetric ? ", symmetric buffers" : "");
    draw_x_axis(p);
    draw_y_axis(p);
    for (int curve = 0; curve < p->n_curves; curve++) draw_curve(p, curve);
    fprintf(p->file, "</svg>\n");
}

lks_status lksi_bench_plot(const char *path, const lksi_bench_row *rows, size_t n_rows) {
    plot p = {.rows = rows, .n_rows = n_rows};
    char *text = NULL;
    size_t nbytes = 0;
    p.file = open_memstream(&text, &nbytes);
    if (p.file == NULL) return lksi_error(LKS_ERR_MEMORY, "out of memory while drawing %s", path);
    set_axes(&p);
    find_curves(&p);
    draw(&p);
    bool is_whole = fclose(p.file) == 0;
    lks_status status = is_whole ? lksi_file_write_atomic(path, text, nbytes)
                                 : lksi_error(LKS_ERR_MEMORY, "out of memory while drawing %s", path);
    free(text);
    return status;
}

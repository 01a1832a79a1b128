# SPDX-License-Identifier: MIT
# Divergence against bits of a weight: gnuplot -e "table='evaluate.tsv'" plot.gp >quality.svg
set terminal svg size 800,560 font 'sans-serif,13' background '#ffffff'
set datafile separator tab
set key off
set logscale y
set xlabel 'bits of a weight of the projections'
set ylabel 'mean KL divergence from the unquantized model'
set grid linecolor rgb '#dddddd'
set offsets graph 0.1, graph 0.25, graph 0.05, graph 0.05
plot table every ::2 using 3:4 with points pointtype 7 pointsize 0.7 linecolor rgb '#1f86c8', \
    table every ::2 using 3:4:1 with labels left offset 1,0 font ',10'

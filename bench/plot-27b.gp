# gnuplot -e "csv='decode.csv'; png='decode.png'" bench/plot-27b.gp : ms a round against context, from bench_27b --csv
if (!exists("png")) png = "decode.png"
set terminal pngcairo size 900,560
set output png
set datafile separator ","
set logscale x 2
set xlabel "context, tokens"
set ylabel "ms a round"
set yrange [0:*]
set key left top
plot "< grep ^draft0 ".csv using 2:3 with linespoints title "draft 0", "< grep ^draft3-0.77 ".csv using 2:3 with linespoints title "draft 3, 0.77 accepted", \
     "< grep ^draft3-0.46 ".csv using 2:3 with linespoints title "draft 3, 0.46 accepted"

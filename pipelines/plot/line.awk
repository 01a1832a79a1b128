# SPDX-License-Identifier: MIT
# awk -v most=N -f text.awk -f line.awk: names and messages, a line each, safe to show.
{
    print text_short(text_safe(substr($0, 1, 4 * most)), most)
}

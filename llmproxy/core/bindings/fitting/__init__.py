"""When a recording fits: candidates by bound key, two requests compared place by place, and what the comparison found."""

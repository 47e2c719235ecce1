"""The bisect command: which node slows down the others, and what does its removal bring?"""

NAME = "scaling bisect"  # prefix of its errors
